"""One policy learnt by several processes on one machine or many: Ray starts them, torch.distributed joins them."""
