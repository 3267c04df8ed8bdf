"""The image: what can be said of it without starting it, and scenarios that start it in an emulated machine."""
