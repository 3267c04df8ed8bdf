"""How the controller's database came to its present form, step by step, for Alembic."""
