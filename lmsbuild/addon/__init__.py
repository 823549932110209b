"""The wheel torch-lms: LMS for an official torch that stays as it is."""
