"""How do the files of a node's store become volumes of runner pods? The driver ``store.berth.dev``.

The Container Storage Interface, node side alone: a pod names the driver, the kubelet asks it to
mount, and it mounts what the agent has lent to that very pod. A program of its own, because mounts
that others see need a privileged container, and what fetches from strangers must not be one.
"""
