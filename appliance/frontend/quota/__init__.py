"""Quotas of clients: how many requests per second, and at a time, each may have."""
