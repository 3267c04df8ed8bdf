"""The models that come with the appliance, and the programs that make them.

The server is pointed at this directory itself: a sub-directory with a numbered version inside is a model, everything
else here (this package, its generators) is not one and is passed over.
"""
