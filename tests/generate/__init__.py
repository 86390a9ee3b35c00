"""Which files are written by programs, and by which?"""
