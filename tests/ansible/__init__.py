"""The Ansible collection."""
