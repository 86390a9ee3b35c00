"""Which engines can Berth run, with which command, at which cost?"""
