"""Promotions that end by themselves."""
