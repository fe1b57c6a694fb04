"""What may go wrong on a bad day, all at once and in any order; every day can be lived again from its seed."""
