"""The controller of a fleet: devices and their enrolment, releases, what is wanted where, telemetry, audit. Boxes come
to it; it reaches none of them."""
