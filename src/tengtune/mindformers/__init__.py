"""Run files of mindformers, written from ours and read into ours."""
