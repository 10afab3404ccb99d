"""Datatrove pipelines, a module a job."""
