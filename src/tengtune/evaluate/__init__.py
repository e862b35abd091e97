"""Judging a model: questions from files and about the world, put to any back end; knows no framework."""
