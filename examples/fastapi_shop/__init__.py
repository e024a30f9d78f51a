"""A shop on FastAPI: it ends promotions at their time, and makes reports when somebody asks."""
