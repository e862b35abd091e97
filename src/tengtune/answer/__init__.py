"""Answering people: chat, and files of questions."""
