"""Reports as data (``to_json``) and as tables for people: scan, show, doctor."""
