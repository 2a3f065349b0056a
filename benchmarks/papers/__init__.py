"""What the papers compare with, and their own forms of a system: registered from here, as any third party would."""
