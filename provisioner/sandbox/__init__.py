"""A cloud in a box: AutoDL, EC2, S3 and IAM on loopback, with machines that really run."""
