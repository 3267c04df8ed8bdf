"""The command line: one module per command, and what they share. It asks a running appliance over its
ports, or opens the store as its writer; it decides nothing about serving, and no other room but `tools`
imports it."""
