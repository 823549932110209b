"""Patches as files: mails, diffs, a tag's series, the runtime's tree."""
