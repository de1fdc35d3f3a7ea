"""Engine steps that live engines ran and recorded (docs/recordings.md)."""
