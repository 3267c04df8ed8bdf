"""The daemon's side: the pool of workers, the zygote's client, and pending replies. Never blocks, imports
no runtime, and believes nothing that a worker says before it was checked."""
