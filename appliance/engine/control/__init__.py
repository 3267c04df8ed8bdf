"""Which versions run and where: reconciling, rollout, placement, memory."""
