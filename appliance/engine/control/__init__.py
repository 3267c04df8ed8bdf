"""Which versions run and where: reconciles what is wanted with what is there, and performs rollout,
placement, restarts and memory. Never touches a request on its way."""
