"""Where are a runner's sessions kept on its node, and whose are they?"""

import hashlib

from berth.api.runner import Runner

SESSIONS_PATH = "/sessions"
"""Where the container finds the folder; an engine that is told to save there is one that saves."""
_FLAG = "--slot-save-path"


def session_folder(runner: Runner) -> str:
    """``MODEL-UID/KEY``, below the store's folder of sessions; empty when it saves none.

    The key covers all that a saved state depends on: the files by digest, the settings, the image
    (the engine's own build is compared by what runs in the pod), and which of several copies it is.
    A file without a digest could change unseen, and a state of other weights is worse than none.
    """
    spec = runner.spec
    if (_FLAG, SESSIONS_PATH) not in zip(spec.command, spec.command[1:], strict=False):
        return ""
    digests = [file.sha256 for file in spec.files]
    if not digests or not all(digests):
        return ""
    parts = [*sorted(map(str, digests)), spec.settings_hash, spec.image, str(spec.ordinal)]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return f"{spec.model_ref.uid}/{key}"
