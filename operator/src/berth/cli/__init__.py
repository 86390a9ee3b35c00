"""What can a person ask of Berth on the command line? ``berth`` and ``kubectl berth``."""
