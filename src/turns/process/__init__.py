"""Child processes: started in a group of their own, known by more than a number, ended whole."""
