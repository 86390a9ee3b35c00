"""Where is the chart, and where do its tests install it?"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "berth"
NAMESPACE = "berth-system"
