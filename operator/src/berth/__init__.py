"""Berth gives language models a berth: a node, a device, so many bytes.

Programs: ``controller`` decides, ``agent`` owns one node, ``gateway`` passes requests,
``runner`` is PID 1 beside the engine, ``cli`` is for people. Everything else is a library:
``api`` (object types), ``headers`` and ``estimator`` (bytes), ``planner`` (decisions),
``runtimes`` (engines), ``manifests`` (pods), ``kube`` (the only package that talks to the
API server), ``units``.
"""
