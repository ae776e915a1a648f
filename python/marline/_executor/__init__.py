"""Inside an executor: how it starts, and how it runs tasks and actors."""
