"""What Gymnasium's MuJoCo environments observe and reward, for batches: one file each, named like their module."""
