"""OpenVINO as a runtime of the edge inference appliance: an example of a package from outside of it."""
