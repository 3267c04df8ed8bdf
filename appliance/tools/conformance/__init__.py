"""The conformance suite of the runtime port: for whoever writes a runtime, and for the tests of those that are here.
The cases are functions that raise; the command runs each in a forked process, as workers are, and once in a jail."""
