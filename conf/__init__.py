"""Hydra configurations and the resolvers that they use."""
