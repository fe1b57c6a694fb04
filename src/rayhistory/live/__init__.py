"""Clusters that are alive: found by watching Kubernetes, read through their dashboards. Nothing here knows a store."""
