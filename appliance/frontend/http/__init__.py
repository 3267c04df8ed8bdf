"""The v2 REST protocol, metrics, status for machines and a status page for people, whatever accepts the
connections. Renders figures and reads none."""
