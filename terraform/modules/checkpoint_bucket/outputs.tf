output "bucket" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.checkpoints.id
}

output "arn" {
  description = "ARN of the bucket."
  value       = aws_s3_bucket.checkpoints.arn
}

output "store" {
  description = "Value for `checkpoint.store` in failover.yaml, without a prefix."
  value       = "s3://${aws_s3_bucket.checkpoints.id}"
}
