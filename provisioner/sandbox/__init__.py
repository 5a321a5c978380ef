"""A cloud in a box: AutoDL, EC2, S3, IAM and Google Cloud on loopback, with machines that really run."""
