"""A room to keep warm, and REINFORCE to learn how."""
