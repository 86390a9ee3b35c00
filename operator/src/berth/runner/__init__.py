"""What keeps one engine alive, honest and finished in its container? PID 1 of a runner's pod.

Nothing here imports anything but the standard library, so that any engine image that has a
Python of 3.11 or newer can run it. Debian's ``python3-minimal`` is not enough: it has neither
``json`` nor ``http`` nor ``dataclasses`` nor ``ctypes``; the package ``python3`` has them all.
"""
