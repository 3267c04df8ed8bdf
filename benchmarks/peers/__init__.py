"""The servers the appliance is compared with, each run as a process of its own."""
