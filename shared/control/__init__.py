"""Every act that a person or a program may ask of Rota, as a function. The command line and all other faces call these.

Each function takes the database and plain values, does one act in one transaction, and returns JSON documents. A
function that changes something also takes the actor and a reason, and inserts a row into ``schedule_audit`` in the same
transaction. If Rota refuses an act, the function raises a RotaError of one sentence, and nothing is changed.
"""
