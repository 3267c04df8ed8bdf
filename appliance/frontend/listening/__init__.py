"""Sockets of our own or the service manager's, who may connect, and the certificates that are shown. Knows
no protocol above them."""
