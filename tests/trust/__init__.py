"""What a box trusts, and what its controller signs."""
