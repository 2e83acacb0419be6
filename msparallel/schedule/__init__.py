"""Jobs on a cluster that others share: manifests for Kubernetes, and queues in which jobs wait and give way.

`manifest.py` turns a recipe into what Kubernetes is told, `check_manifest.py` reads what anybody tells it. Nothing here
imports MindSpore, and nothing talks to a cluster.
"""
