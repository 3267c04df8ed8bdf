"""Counting and logging; decides nothing."""
