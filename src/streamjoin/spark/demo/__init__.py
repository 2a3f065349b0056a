"""The demo's feeds, figures and view."""
