"""What a turn holds, one module a hold. Nothing but the turn's scope gives a hold back."""
