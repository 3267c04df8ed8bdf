"""Trials of models in processes of their own."""
