"""Every change of an instance's state and of its nodes' states: one guarded update for each move.

The moves are declared in ``rota.shared.domain.states`` (``MOVES``). An update takes the state that it expects and the
state that it sets from its move. The nodes follow in the same transaction. No other module updates instances or
nodes; a test checks that. An update leaves a row in another state, or with another fence, as it is: its caller has
lost a race, and that is an answer, not an error.

``giving``      give, take back
``claiming``    claim
``reporting``   proceed, succeed, fail, retry, stop, hand back
``recovering``  recover, fail lost, cancel lost
``rescheduling`` reschedule
``canceling``   refuse, skip, cancel
"""
